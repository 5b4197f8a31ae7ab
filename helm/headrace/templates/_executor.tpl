{{/* What Spark makes its executors from: as restricted as the replicas. */}}
{{- define "headrace.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "headrace.podLabels" . | nindent 4 }}
    app.kubernetes.io/component: executor
spec:
  automountServiceAccountToken: false
  securityContext: {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.hostAliases }}
  hostAliases: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: spark-kubernetes-executor
      securityContext: {{- toYaml .Values.securityContext | nindent 8 }}
      {{- with .Values.extraEnv }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts: {{- include "headrace.mounts" . | nindent 8 }}
  volumes: {{- include "headrace.volumes" . | nindent 4 }}
{{- end -}}

{{- define "headrace.configData" -}}
service.toml: |
  {{- include "headrace.serviceToml" . | trim | nindent 2 }}
{{- if .Values.sparkOnKubernetes.enabled }}
executor.yaml: |
  {{- include "headrace.executor" . | nindent 2 }}
{{- end }}
{{- end -}}
