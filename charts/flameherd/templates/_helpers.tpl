{{/* An image by registry, repository, and digest or tag. Takes {image, root}. */}}
{{- define "flameherd.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- with .root.Values.image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{ .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "flameherd.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/part-of: flameherd
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* What a pod says of pulling images. */}}
{{- define "flameherd.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What Pod Security's `restricted` asks of a pod. OpenShift gives user ids itself. */}}
{{- define "flameherd.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.openShift.enabled }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "flameherd.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The rules of one role, as a list. Takes {name, root}. */}}
{{- define "flameherd.rules" -}}
{{- $roles := .root.Files.Get "files/roles.yaml" | fromYaml -}}
{{- required (printf "files/roles.yaml has no %s" .name) (get $roles .name) | toYaml -}}
{{- end -}}

{{/* Where policies without an export go, if the backend is there. */}}
{{- define "flameherd.backendEndpoint" -}}
{{ ternary "https" "http" (ne .Values.backend.tlsSecretName "") }}://flameherd-backend.{{ .Release.Namespace }}.svc:4317
{{- end -}}

{{/* The objects that the operator keeps, a JSON document each: toYaml would write large numbers as 1e+06. */}}
{{- define "flameherd.defaults" -}}
{{- $meta := dict "name" "default" -}}
{{- if .Values.agents.pool.create }}
{{- $spec := .Values.agents.pool.spec -}}
{{- if and .Values.agents.priorityClass.create (not (hasKey $spec "priorityClassName")) }}
{{- $spec = merge (dict "priorityClassName" .Values.agents.priorityClass.name) $spec -}}
{{- end -}}
---
{{ dict "apiVersion" "flameherd.dev/v1alpha1" "kind" "AgentPool" "metadata" $meta "spec" $spec | toJson }}
{{ end -}}
{{- if .Values.clusterPolicy.create -}}
{{- $spec := deepCopy .Values.clusterPolicy.spec -}}
{{- if and .Values.backend.enabled (not (dig "defaults" "export" "" $spec)) }}
{{- $export := dict "export" (dict "endpoint" (include "flameherd.backendEndpoint" .)) -}}
{{- $spec = merge $spec (dict "defaults" $export) -}}
{{- end -}}
---
{{ dict "apiVersion" "flameherd.dev/v1alpha1" "kind" "ClusterProfilingPolicy" "metadata" $meta "spec" $spec | toJson }}
{{ end -}}
{{- end -}}

{{/* As render/agents.py of the operator has them; a test holds both together. */}}
{{- define "flameherd.agentCapabilities" -}}
[BPF, PERFMON, SYS_PTRACE, SYSLOG, DAC_READ_SEARCH, CHECKPOINT_RESTORE]
{{- end -}}
