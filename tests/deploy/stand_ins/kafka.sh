# KAFKA_A_B=x is the property a.b=x, as in Apache's image.
set -eu
env | sed -n 's/^KAFKA_\([A-Z_]*\)=/\1=/p' | while IFS='=' read -r name value; do
  echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done >/tmp/server.properties
java() { command java -cp "$(cat /opt/kafka/classpath)" "$@"; }
[ -e /var/lib/kafka/data/meta.properties ] ||
  java kafka.tools.StorageTool format -c /tmp/server.properties --cluster-id=4L6g3nShT-eMCtK--X86sw
exec tini -- java -Xmx512m -cp "$(cat /opt/kafka/classpath)" kafka.Kafka /tmp/server.properties
