{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters: a pod's name, and what is appended to it, must stay below 63. */}}
{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "headrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headrace.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What a pod is labelled with: no version, so that a chart's new one alone restarts nothing. */}}
{{- define "headrace.podLabels" -}}
{{ include "headrace.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* "true", or nothing. */}}
{{- define "headrace.usesSpark" -}}
{{- if or .Values.spark .Values.sparkOnKubernetes.enabled (eq (dig "pipeline" "engine" "local" .Values.config) "spark") }}true{{ end -}}
{{- end -}}

{{- define "headrace.image" -}}
{{- $own := printf "%s%s" .Chart.AppVersion (ternary "" "-slim" (eq (include "headrace.usesSpark" .) "true")) -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $own .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.resources" -}}
{{- if .Values.resources }}{{ toYaml .Values.resources }}{{ else -}}
{{- $memory := ternary "3Gi" "1Gi" (eq (include "headrace.usesSpark" .) "true") -}}
requests: {cpu: 500m, memory: {{ $memory }}, ephemeral-storage: 1Gi}
limits: {memory: {{ $memory }}, ephemeral-storage: 4Gi}
{{- end -}}
{{- end -}}

{{- define "headrace.serviceAccount" -}}
{{- default (ternary (include "headrace.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "headrace.executorServiceAccount" -}}
{{- ternary (printf "%s-executor" (include "headrace.fullname" .)) "default" .Values.serviceAccount.create -}}
{{- end -}}

{{- define "headrace.configMap" -}}
{{- default (printf "%s-config" (include "headrace.fullname" .)) .Values.existingConfig.configMap -}}
{{- end -}}

{{- define "headrace.pipelineConfigMap" -}}
{{- if .Values.pipeline.existingConfigMap -}}{{ .Values.pipeline.existingConfigMap }}
{{- else if .Values.pipeline.files -}}{{ include "headrace.fullname" . }}-pipeline
{{- end -}}
{{- end -}}

{{- define "headrace.drainSeconds" -}}
{{- if .Values.existingConfig.configMap -}}{{ .Values.existingConfig.drainSeconds }}
{{- else -}}{{ dig "pipeline" "drain_seconds" 25 .Values.config }}
{{- end -}}
{{- end -}}

{{/* Draining, then closing what was open, which may take as long again. */}}
{{- define "headrace.gracePeriod" -}}
{{- default (add 10 (ceil (mulf 2 (include "headrace.drainSeconds" . | float64)))) .Values.terminationGracePeriodSeconds | int64 -}}
{{- end -}}

{{/* A JSON literal is a TOML one but for tables, which become inline tables, and null. */}}
{{- define "headrace.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true -}}
{{- range $key, $value := . -}}{{- if not (kindIs "invalid" $value) -}}
{{- if not $first }},{{ end }} {{ $key | toJson }} = {{ include "headrace.toml" $value }}{{- $first = false -}}
{{- end -}}{{- end }} }
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- define "headrace.serviceToml" -}}
{{- range $section, $keys := include "headrace.mergedConfig" . | fromJson }}
[{{ $section }}]
{{- range $key, $value := $keys }}{{- if not (kindIs "invalid" $value) }}
{{ $key | toJson }} = {{ include "headrace.toml" $value }}
{{- end }}{{- end }}
{{ end -}}
{{- end -}}

{{/* What the chart knows, and what `config` says over it. */}}
{{- define "headrace.mergedConfig" -}}
{{- $own := dict -}}
{{- with .Values.kafka -}}
{{- $kafka := dict -}}
{{- if or .tls.enabled .existingSecret -}}
{{- $_ := set $kafka "security.protocol" (printf "%s%s" (ternary "sasl_" "" (ne .existingSecret "")) (ternary "ssl" "plaintext" .tls.enabled)) -}}
{{- end -}}
{{- if .tls.existingSecret -}}
{{- with .tls.caKey }}{{ $_ := set $kafka "ssl.ca.location" (printf "/etc/headrace-tls/kafka/%s" .) }}{{ end -}}
{{- with .tls.certKey }}{{ $_ := set $kafka "ssl.certificate.location" (printf "/etc/headrace-tls/kafka/%s" .) }}{{ end -}}
{{- with .tls.keyKey }}{{ $_ := set $kafka "ssl.key.location" (printf "/etc/headrace-tls/kafka/%s" .) }}{{ end -}}
{{- end -}}
{{- $_ := set $own "kafka" $kafka -}}
{{- end -}}
{{- with .Values.zookeeper -}}
{{- $zookeeper := dict -}}
{{- if .tls.enabled }}{{ $_ := set $zookeeper "tls" true }}{{ end -}}
{{- if .tls.existingSecret -}}
{{- with .tls.caKey }}{{ $_ := set $zookeeper "tls_ca" (printf "/etc/headrace-tls/zookeeper/%s" .) }}{{ end -}}
{{- with .tls.certKey }}{{ $_ := set $zookeeper "tls_cert" (printf "/etc/headrace-tls/zookeeper/%s" .) }}{{ end -}}
{{- with .tls.keyKey }}{{ $_ := set $zookeeper "tls_key" (printf "/etc/headrace-tls/zookeeper/%s" .) }}{{ end -}}
{{- end -}}
{{- $_ := set $own "zookeeper" $zookeeper -}}
{{- end -}}
{{- $storage := dict -}}
{{- if .Values.warehouse.existingClaim }}{{ $_ := set $storage "warehouse" .Values.warehouse.mountPath }}{{ end -}}
{{- with .Values.storage.caKey }}{{ $_ := set $storage "ca_file" (printf "/etc/headrace-storage/%s" .) }}{{ end -}}
{{- $_ := set $own "storage" $storage -}}
{{- $spark := dict -}}
{{- with .Values.sparkOnKubernetes }}{{ if .enabled -}}
{{- $_ := set $spark "conf" (dict
  "spark.master" (printf "k8s://%s" .apiServer)
  "spark.kubernetes.namespace" $.Release.Namespace
  "spark.kubernetes.container.image" (include "headrace.image" $)
  "spark.kubernetes.container.image.pullPolicy" $.Values.image.pullPolicy
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "headrace.executorServiceAccount" $)
  "spark.kubernetes.executor.podTemplateFile" "/etc/headrace/executor.yaml"
  "spark.driver.bindAddress" "0.0.0.0"
  "spark.driver.port" (toString .driverPort)
  "spark.blockManager.port" (toString .blockManagerPort)
  "spark.executor.instances" (toString .executors)
  "spark.executor.cores" (toString .cores)
  "spark.executor.memory" .memory) -}}
{{- with $.Values.imagePullSecrets -}}
{{- $names := list }}{{ range . }}{{ $names = append $names .name }}{{ end -}}
{{- $_ := set $spark.conf "spark.kubernetes.container.image.pullSecrets" (join "," $names) -}}
{{- end -}}
{{- end }}{{ end -}}
{{- $_ := set $own "spark" $spark -}}
{{- $merged := mustMergeOverwrite $own (deepCopy .Values.config) -}}
{{- range $section, $keys := $merged }}{{ if not $keys }}{{ $_ := unset $merged $section }}{{ end }}{{ end -}}
{{- toJson $merged -}}
{{- end -}}

{{/* What a schema cannot say: each message tells what to change. */}}
{{- define "headrace.validate" -}}
{{- $drain := include "headrace.drainSeconds" . | float64 -}}
{{- if le (include "headrace.gracePeriod" . | float64) $drain -}}
{{- fail (printf "terminationGracePeriodSeconds (%s) must be above drain_seconds (%v): a pod that is killed while it drains repeats what it had begun" (include "headrace.gracePeriod" .) $drain) -}}
{{- end -}}
{{- if and .Values.existingConfig.configMap .Values.config -}}
{{- fail "config and existingConfig.configMap: give one of them" -}}
{{- end -}}
{{- if and .Values.pipeline.files .Values.pipeline.existingConfigMap -}}
{{- fail "pipeline.files and pipeline.existingConfigMap: give one of them" -}}
{{- end -}}
{{- if .Values.existingConfig.configMap -}}
{{- if or .Values.sparkOnKubernetes.enabled .Values.kafka.tls.enabled .Values.zookeeper.tls.enabled .Values.warehouse.existingClaim .Values.storage.caKey -}}
{{- fail "existingConfig.configMap: the chart cannot add to it; say sparkOnKubernetes, kafka.tls, zookeeper.tls, warehouse and storage.caKey in it yourself, with extraVolumes, or use config" -}}
{{- end -}}
{{- else -}}
{{- $merged := include "headrace.mergedConfig" . | fromJson -}}
{{- if not (dig "kafka" "bootstrap.servers" "" $merged) }}{{ fail "config.kafka: \"bootstrap.servers\" is needed" }}{{ end -}}
{{- if not (dig "zookeeper" "hosts" "" $merged) }}{{ fail "config.zookeeper: \"hosts\" is needed" }}{{ end -}}
{{- $engine := dig "pipeline" "engine" "local" $merged -}}
{{- if and .Values.autoscaling.enabled (eq $engine "spark") -}}
{{- fail "autoscaling: on the spark engine one replica has every partition and the others stand by; scale Spark's executors instead" -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling }}{{ if .enabled -}}
{{- if not .serverAddress }}{{ fail "autoscaling.serverAddress is needed: Prometheus, as KEDA reaches it" }}{{ end -}}
{{- if lt (int .maxReplicas) (int .minReplicas) }}{{ fail "autoscaling.maxReplicas is below minReplicas" }}{{ end -}}
{{- end }}{{ end -}}
{{- range $which := list "kafka" "zookeeper" -}}
{{- $tls := (index $.Values $which).tls -}}
{{- if and $tls.existingSecret (not $tls.enabled) }}{{ fail (printf "%s.tls.existingSecret is given, but %s.tls.enabled is false" $which $which) }}{{ end -}}
{{- if ne (empty $tls.certKey) (empty $tls.keyKey) }}{{ fail (printf "%s.tls: certKey and keyKey belong together" $which) }}{{ end -}}
{{- end -}}
{{- with .Values.storage }}{{ if and .caKey (not .existingSecret) }}{{ fail "storage.caKey is given, but storage.existingSecret is not" }}{{ end }}{{ end -}}
{{- end -}}

{{- define "headrace.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HEADRACE_HTTP__HOST
  value: "0.0.0.0"
- name: HEADRACE_HTTP__PORT
  value: {{ .Values.port | quote }}
{{- if not .Values.showErrors }}
- name: HEADRACE_HTTP__SHOW_ERRORS
  value: "false"
{{- end }}
- name: HEADRACE_REPLICAS__NAME
  value: $(POD_NAME)
{{- with .Values.kafka }}{{ if .existingSecret }}
- name: HEADRACE_KAFKA__SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .usernameKey | quote }}}}
- name: HEADRACE_KAFKA__SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .passwordKey | quote }}}}
{{- end }}{{ end }}
{{- with .Values.zookeeper }}{{ if .existingSecret }}
- name: HEADRACE_ZOOKEEPER__USERNAME
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .usernameKey | quote }}}}
- name: HEADRACE_ZOOKEEPER__PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .passwordKey | quote }}}}
{{- end }}{{ end }}
{{- with .Values.storage }}{{ if .existingSecret }}{{ range .secretKeys }}
- name: HEADRACE_STORAGE__{{ upper . }}__FILE
  value: /etc/headrace-storage/{{ . }}
{{- end }}{{ end }}{{ end }}
{{- if .Values.sparkOnKubernetes.enabled }}
- name: HEADRACE_SPARK__CONF__SPARK_KUBERNETES_DRIVER_POD_NAME
  value: $(POD_NAME)
- name: HEADRACE_SPARK__CONF__SPARK_DRIVER_HOST
  value: {{ ternary "$(POD_IP)" (printf "$(POD_NAME).%s.%s.svc" (include "headrace.fullname" .) .Release.Namespace) (eq .Values.sparkOnKubernetes.driverAddress "ip") }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headrace.mounts" -}}
- {name: config, mountPath: /etc/headrace, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if include "headrace.pipelineConfigMap" . }}
- {name: pipeline, mountPath: /pipeline, readOnly: true}
{{- end }}
{{- if .Values.kafka.tls.existingSecret }}
- {name: kafka-tls, mountPath: /etc/headrace-tls/kafka, readOnly: true}
{{- end }}
{{- if .Values.zookeeper.tls.existingSecret }}
- {name: zookeeper-tls, mountPath: /etc/headrace-tls/zookeeper, readOnly: true}
{{- end }}
{{- if .Values.storage.existingSecret }}
- {name: storage, mountPath: /etc/headrace-storage, readOnly: true}
{{- end }}
{{- if .Values.warehouse.existingClaim }}
- {name: warehouse, mountPath: {{ .Values.warehouse.mountPath | quote }}}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headrace.volumes" -}}
- name: config
  projected:
    defaultMode: 0444
    sources:
      - configMap:
          name: {{ include "headrace.configMap" . }}
          items:
            - {key: {{ ternary .Values.existingConfig.key "service.toml" (ne .Values.existingConfig.configMap "") | quote }}, path: service.toml}
            {{- if .Values.sparkOnKubernetes.enabled }}
            - {key: executor.yaml, path: executor.yaml}
            {{- end }}
- name: tmp
  emptyDir: {{- toYaml .Values.tmp | nindent 4 }}
{{- with include "headrace.pipelineConfigMap" . }}
- name: pipeline
  configMap: {name: {{ . }}, defaultMode: 0444}
{{- end }}
{{- range $which := list "kafka" "zookeeper" }}
{{- with (index $.Values $which).tls.existingSecret }}
- name: {{ $which }}-tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- with .Values.storage.existingSecret }}
- name: storage
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.warehouse.existingClaim }}
- name: warehouse
  persistentVolumeClaim: {claimName: {{ . | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
