# Permissions of the daemon in a cluster, one rule for each of its calls. `outrigger-observe` has the reads,
# `outrigger-manage` the changes, and the Role has single objects in kube-system. A rule for an option is
# present only if the option is on.

locals {
  watched = ["list", "watch"]

  observe = concat(
    [
      # Pending pods and available capacity. The daemon reads single objects with `get` to distinguish an
      # incomplete view from a cluster that shrank.
      { apiGroups = [""], resources = ["pods", "nodes"], verbs = concat(["get"], local.watched) },
      # Volumes and namespaces constrain the scheduling of pods.
      {
        apiGroups = [""]
        resources = ["persistentvolumeclaims", "persistentvolumes", "namespaces"]
        verbs     = local.watched
      },
      # Daemon overhead of new nodes.
      { apiGroups = ["apps"], resources = ["daemonsets"], verbs = local.watched },
      # A node with pods that may not be evicted is no candidate for disruption.
      { apiGroups = ["policy"], resources = ["poddisruptionbudgets"], verbs = local.watched },
      # Topology of volumes that are not provisioned yet, and volume limits of nodes.
      { apiGroups = ["storage.k8s.io"], resources = ["storageclasses", "csinodes"], verbs = local.watched },
      # The Service CIDR for user data, if neither EKS nor the configuration provides it.
      {
        apiGroups     = ["networking.k8s.io"]
        resources     = ["servicecidrs"]
        resourceNames = ["kubernetes"]
        verbs         = ["get"]
      },
      # The daemon changes nothing while Karpenter renews its Lease in the namespace kube-system or karpenter.
      # The namespace karpenter may not exist, so this rule cannot be in a Role.
      {
        apiGroups     = ["coordination.k8s.io"]
        resources     = ["leases"]
        resourceNames = ["karpenter-leader-election"]
        verbs         = ["get"]
      },
      # Image selection depends on the version of the cluster.
      { nonResourceURLs = ["/version"], verbs = ["get"] },
    ],
    # Objects that select pods, for the default topology spread of kube-scheduler.
    [
      for own in [
        { apiGroups = [""], resources = ["services", "replicationcontrollers"], verbs = local.watched },
        { apiGroups = ["apps"], resources = ["replicasets", "statefulsets"], verbs = local.watched },
      ] : own if var.default_spread
    ],
    # Capacity buffers: the daemon lists them periodically, and reads each PodTemplate that they name.
    [
      for own in [
        { apiGroups = ["autoscaling.x-k8s.io"], resources = ["capacitybuffers"], verbs = ["list"] },
        { apiGroups = [""], resources = ["podtemplates"], verbs = ["get"] },
      ] : own if var.capacity_buffers
    ],
  )

  node_verbs = concat(
    # The daemon patches labels, annotations, taints and the finalizer of nodes. It deletes the Node of a
    # terminated instance.
    ["patch", "delete"],
    # The Node of an instance whose kubelet has not registered yet, or whose kubelet is simulated.
    var.early_binding || var.simulated_nodes ? ["create"] : [],
  )

  manage = concat(
    [
      { apiGroups = [""], resources = ["nodes"], verbs = local.node_verbs },
      # The daemon drains nodes with the eviction API, which enforces PodDisruptionBudgets.
      { apiGroups = [""], resources = ["pods/eviction"], verbs = ["create"] },
      # Volumes must be detached before an instance is terminated. RBAC cannot select those of one node.
      { apiGroups = ["storage.k8s.io"], resources = ["volumeattachments"], verbs = ["list"] },
    ],
    # `status.nominatedNodeName` of pending pods.
    [
      for own in [{ apiGroups = [""], resources = ["pods/status"], verbs = ["patch"] }] :
      own if var.placement_hints
    ],
    # The status of a CapacityBuffer reports whether its capacity is available.
    [
      for own in [
        { apiGroups = ["autoscaling.x-k8s.io"], resources = ["capacitybuffers/status"], verbs = ["patch"] },
      ] : own if var.capacity_buffers
    ],
    # Events about pods and nodes, for `kubectl describe`.
    [
      for own in [{ apiGroups = ["events.k8s.io"], resources = ["events"], verbs = ["create"] }] :
      own if var.events
    ],
    # The daemon binds pods to nodes before their kubelets register.
    [
      for own in [{ apiGroups = [""], resources = ["pods/binding"], verbs = ["create"] }] :
      own if var.early_binding
    ],
    # Pods that still run when the drain of their node must end, and early-bound pods whose node never
    # registers.
    [
      for own in [{ apiGroups = [""], resources = ["pods"], verbs = ["delete"] }] :
      own if var.forced_ends || var.early_binding
    ],
    # The status that a kubelet writes to its Node. The daemon writes it only for simulated nodes.
    [
      for own in [{ apiGroups = [""], resources = ["nodes/status"], verbs = ["patch"] }] :
      own if var.simulated_nodes
    ],
  )

  system = concat(
    [
      # The Lease has the leader, pauses, and the disruptions recorded for budgets with a `rate`. The Service
      # kube-dns has the cluster DNS address.
      {
        apiGroups     = ["coordination.k8s.io"]
        resources     = ["leases"]
        resourceNames = [var.lease_name]
        verbs         = var.mode == "manage" ? ["get", "patch"] : ["get"]
      },
      { apiGroups = [""], resources = ["services"], resourceNames = ["kube-dns"], verbs = ["get"] },
    ],
    # RBAC cannot restrict `create` to a name.
    [
      for own in [{ apiGroups = ["coordination.k8s.io"], resources = ["leases"], verbs = ["create"] }] :
      own if var.mode == "manage"
    ],
    # Bootstrap tokens are Secrets in this namespace. The daemon creates them and never reads them.
    [
      for own in [{ apiGroups = [""], resources = ["secrets"], verbs = ["create"] }] :
      own if var.mode == "manage" && var.bootstrap_tokens
    ],
  )

  rbac_api = "rbac.authorization.k8s.io"
  subjects = [{ apiGroup = local.rbac_api, kind = "Group", name = var.group }]

  roles = [
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "ClusterRole"
      metadata   = { name = "outrigger-observe" }
      rules      = local.observe
    },
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "ClusterRole"
      metadata   = { name = "outrigger-manage" }
      rules      = local.manage
    },
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "Role"
      metadata   = { name = "outrigger", namespace = "kube-system" }
      rules      = local.system
    },
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "ClusterRoleBinding"
      metadata   = { name = "outrigger-observe" }
      roleRef    = { apiGroup = local.rbac_api, kind = "ClusterRole", name = "outrigger-observe" }
      subjects   = local.subjects
    },
    # The binding exists in both modes, so that `kubectl apply` also removes the permissions when the mode
    # changes.
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "ClusterRoleBinding"
      metadata   = { name = "outrigger-manage" }
      roleRef    = { apiGroup = local.rbac_api, kind = "ClusterRole", name = "outrigger-manage" }
      subjects   = [for own in local.subjects : own if var.mode == "manage"]
    },
    {
      apiVersion = "${local.rbac_api}/v1"
      kind       = "RoleBinding"
      metadata   = { name = "outrigger", namespace = "kube-system" }
      roleRef    = { apiGroup = local.rbac_api, kind = "Role", name = "outrigger" }
      subjects   = local.subjects
    },
  ]
}
