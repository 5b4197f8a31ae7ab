set -eu
printf 'dataDir=/data\ndataLogDir=/datalog\nclientPort=2181\ntickTime=2000\nmaxClientCnxns=60\nadmin.enableServer=false\n' >/tmp/zoo.cfg
jars="$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')"
exec tini -- java -Xmx256m -cp "$jars/*" org.apache.zookeeper.server.quorum.QuorumPeerMain /tmp/zoo.cfg
