# POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, as in PostgreSQL's image.
set -eu
data=/var/lib/postgresql/data
if [ ! -e "$data/PG_VERSION" ]; then
  initdb --encoding=UTF8 --locale=C.UTF-8 --pgdata="$data" --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") \
    --auth-host=scram-sha-256 --auth-local=trust
  echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
  echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$data" postgres
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp
