package headrace;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/**
 * Puts an entry of Delta's log on S3 only if it is absent (If-None-Match).
 *
 * Delta's own store for S3 looks first and then puts, for one driver: of two at once both win. Janino
 * compiles this when Spark starts, which knows no generics.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
  public ConditionalLogStore(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf)
      throws IOException {
    if (overwrite.booleanValue()) {
      super.write(path, actions, overwrite, conf);
      return;
    }
    FSDataOutputStreamBuilder builder = path.getFileSystem(conf).createFile(path);
    builder.must("fs.option.create.conditional.overwrite", true);
    FSDataOutputStream entry = (FSDataOutputStream) builder.build();
    while (actions.hasNext()) {
      entry.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    try {
      entry.close(); // which puts it
    } catch (RemoteFileChangedException lost) {
      throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(lost);
    }
  }
}
