{{- define "heterotrain-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "heterotrain-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "heterotrain-operator.name" . }}
{{- if contains .Release.Name $name }}
{{- $name }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Name of a cluster-wide object: two releases of one name may lie in two namespaces. */ -}}
{{- define "heterotrain-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "heterotrain-operator.fullname" .) }}
{{- end }}

{{- define "heterotrain-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "heterotrain-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "heterotrain-operator.labels" -}}
{{ include "heterotrain-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: heterotrain
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "heterotrain-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "heterotrain-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Reference of an image: dict "image" (an image of the values) "version" (the chart's appVersion). */ -}}
{{- define "heterotrain-operator.image" -}}
{{- if eq .image.tag "latest" }}{{ fail "an image's tag must name a version, not be latest: operator and trainer must be of one version" }}{{ end }}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .version .image.tag }}{{ end }}
{{- end }}

{{- /* The namespaces that are served, as a JSON list; empty: all. */ -}}
{{- define "heterotrain-operator.namespaces" -}}
{{- if eq .Values.scope "Cluster" }}[]{{ else }}{{ default (list .Release.Namespace) .Values.watchNamespaces | uniq | toJson }}{{ end }}
{{- end }}

{{- /* Not empty if the REST API is served. */ -}}
{{- define "heterotrain-operator.rest" -}}
{{- if and .Values.information.enabled .Values.rest.enabled }}true{{ end }}
{{- end }}

{{- /* Not empty if the optional ClusterRole is made. */ -}}
{{- define "heterotrain-operator.informationClusterRole" -}}
{{- $choice := .Values.information.clusterRole }}
{{- if and .Values.rbac.create .Values.information.enabled (or (eq $choice "Always") (and (eq $choice "Auto") (eq .Values.scope "Cluster"))) }}true{{ end }}
{{- end }}

{{- /* Rule packs, in the order of heterotrain_operator.info.packs: CLUSTER or PROMETHEUS unless some are named. */ -}}
{{- define "heterotrain-operator.packs" -}}
{{- $derived := list "trainer" "transfers" "derived-node" }}
{{- $chosen := list }}
{{- with .Values.information }}
{{- if eq (join " " .packs) "none" }}
{{- else if .packs }}
{{- $chosen = .packs }}
{{- else if .prometheus.url }}
{{- $chosen = concat (list "kubernetes" "node-exporter" "cadvisor-prometheus" "dcgm") $derived (list "derived-accelerator" "derived-trainer" "derived-link" "derived-service") }}
{{- else }}
{{- $chosen = concat (list "kubernetes") (ternary (list "cadvisor") list .kubelet) $derived (list "derived-trainer" "derived-link" "derived-service") }}
{{- end }}
{{- end }}
{{- join " " $chosen }}
{{- end }}

{{- /* Rules of packs to leave out: who makes the operator's rights here without those on nodes has no rule about nodes either,
       it could only fail. Where somebody else gives the rights (rbac.create off), they may be there. */ -}}
{{- define "heterotrain-operator.withoutRules" -}}
{{- $without := .Values.information.withoutRules }}
{{- if and .Values.rbac.create (not (include "heterotrain-operator.informationClusterRole" .)) }}
{{- $without = append $without "kubernetes-nodes" | uniq }}
{{- end }}
{{- join " " $without }}
{{- end }}

{{- /* All that the operator may do, in each namespace that it serves: heterotrain_operator.kube.RULES. */ -}}
{{- define "heterotrain-operator.rules" -}}
- apiGroups: [heterotrain.io]
  resources: [heterotrainjobs]
  verbs: [get, list, watch]
- apiGroups: [heterotrain.io]
  resources: [heterotrainjobs/status]
  verbs: [update]
# For owner references that block a deletion, where the API server guards them (OpenShift). No finalizer is written.
- apiGroups: [heterotrain.io]
  resources: [heterotrainjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
# The certificates of a job's pods. No list, no watch: by name only.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}
