#!/bin/sh
# The image's first process: headrace with what it is told, or, where Spark on Kubernetes starts
# the image with the word `executor`, one of its executors. tini reaps children and hands signals on.
set -eu

if [ "${1:-}" != executor ]; then
  exec tini -- headrace "$@"
fi

# Spark numbers the executor's Java options: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
set --
number=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$number+set}\" ]"; do
  eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
  number=$((number + 1))
done
jars="$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')"
# An executor puts the driver's jars into its folder, and the root file system may be read-only.
cd "${TMPDIR:-/tmp}"
# Named first, so that the driver's own jars can be among them; the sinks' jars come from the driver.
classpath="${SPARK_CLASSPATH:-}${SPARK_CLASSPATH:+:}$jars/*"
exec tini -s -- java "$@" \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
