{{- define "windlass.labels" -}}
app.kubernetes.io/name: windlass
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "windlass.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "windlass.secret" -}}
{{ default .Release.Name .Values.secret.existing }}
{{- end }}

{{/* What API servers and controllers have in common: one image, one config, a home that is gone with the pod. */}}
{{- define "windlass.pod" -}}
# Kubernetes would describe the service `windlass` in variables that look like settings of the server.
enableServiceLinks: false
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: config
    configMap:
      name: {{ .Release.Name }}
  - name: home
    emptyDir: {}
  - name: tmp
    emptyDir: {}
{{- end }}

{{- define "windlass.container" -}}
image: {{ include "windlass.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef:
      name: {{ include "windlass.secret" . }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: config
    mountPath: /etc/windlass
    readOnly: true
  - name: home
    mountPath: /var/lib/windlass
  - name: tmp
    mountPath: /tmp
{{- end }}
