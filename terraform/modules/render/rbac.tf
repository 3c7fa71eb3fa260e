# What the daemon may do in a cluster, rule by rule as its calls are. `outrigger-observe` is what it
# reads, `outrigger-manage` what it changes; the Role is what concerns single objects in kube-system.
# A rule about what no configuration uses is not there.

locals {
  watched = ["list", "watch"]

  observe = concat(
    [
      # Pods wait, and nodes have room. `get` is the probe of single objects by which a view that
      # shows too little is told from a cluster that shrank.
      { apiGroups = [""], resources = ["pods", "nodes"], verbs = concat(["get"], local.watched) },
      # Volumes and namespaces say where pods may go.
      {
        apiGroups = [""]
        resources = ["persistentvolumeclaims", "persistentvolumes", "namespaces"]
        verbs     = local.watched
      },
      # Daemons take room on every node that is still to come.
      { apiGroups = ["apps"], resources = ["daemonsets"], verbs = local.watched },
      # A node whose pods may not be evicted is no candidate.
      { apiGroups = ["policy"], resources = ["poddisruptionbudgets"], verbs = local.watched },
      # Topology of volumes that are not there yet, and how many volumes a node takes.
      { apiGroups = ["storage.k8s.io"], resources = ["storageclasses", "csinodes"], verbs = local.watched },
      # User data of nodes has the addresses of Services, where neither EKS nor the configuration says.
      {
        apiGroups     = ["networking.k8s.io"]
        resources     = ["servicecidrs"]
        resourceNames = ["kubernetes"]
        verbs         = ["get"]
      },
      # Nothing is done beside a Karpenter that is at work, as its Lease in kube-system or karpenter says.
      # The latter may not be there, so that no Role can name it.
      {
        apiGroups     = ["coordination.k8s.io"]
        resources     = ["leases"]
        resourceNames = ["karpenter-leader-election"]
        verbs         = ["get"]
      },
      # Images are chosen by the version of the cluster.
      { nonResourceURLs = ["/version"], verbs = ["get"] },
    ],
    # What selects pods, for pods that are spread as kube-scheduler does by default.
    [
      for own in [
        { apiGroups = [""], resources = ["services", "replicationcontrollers"], verbs = local.watched },
        { apiGroups = ["apps"], resources = ["replicasets", "statefulsets"], verbs = local.watched },
      ] : own if var.default_spread
    ],
    # Room that objects ask for: buffers are listed again and again, and the templates that they name
    # are read one by one.
    [
      for own in [
        { apiGroups = ["autoscaling.x-k8s.io"], resources = ["capacitybuffers"], verbs = ["list"] },
        { apiGroups = [""], resources = ["podtemplates"], verbs = ["get"] },
      ] : own if var.capacity_buffers
    ],
  )

  node_verbs = concat(
    # Labels, annotations, taints and finalizer of nodes are patched; the Node of an instance that has
    # ended is deleted.
    ["patch", "delete"],
    # The Node of an instance whose kubelet has not come yet, or whose kubelet is simulated.
    var.early_binding || var.simulated_nodes ? ["create"] : [],
  )

  manage = concat(
    [
      { apiGroups = [""], resources = ["nodes"], verbs = local.node_verbs },
      # Pods leave a node through the eviction API, which keeps their disruption budgets.
      { apiGroups = [""], resources = ["pods/eviction"], verbs = ["create"] },
      # Before an instance is ended its volumes have to be detached. Nobody can pick those of one node.
      { apiGroups = ["storage.k8s.io"], resources = ["volumeattachments"], verbs = ["list"] },
    ],
    # `status.nominatedNodeName` of pods that wait for a node.
    [
      for own in [{ apiGroups = [""], resources = ["pods/status"], verbs = ["patch"] }] :
      own if var.placement_hints
    ],
    # The status of CapacityBuffers says whether their room is there.
    [
      for own in [
        { apiGroups = ["autoscaling.x-k8s.io"], resources = ["capacitybuffers/status"], verbs = ["patch"] },
      ] : own if var.capacity_buffers
    ],
    # Events about pods and nodes, for those who describe them.
    [
      for own in [{ apiGroups = ["events.k8s.io"], resources = ["events"], verbs = ["create"] }] :
      own if var.events
    ],
    # Pods are bound to nodes that are still to come.
    [
      for own in [{ apiGroups = [""], resources = ["pods/binding"], verbs = ["create"] }] :
      own if var.early_binding
    ],
    # Pods that outstay the end of their node, and those that were bound early and whose node never came.
    [
      for own in [{ apiGroups = [""], resources = ["pods"], verbs = ["delete"] }] :
      own if var.forced_ends || var.early_binding
    ],
    # What a kubelet says when it finds its Node: only a simulated one is played by the daemon.
    [
      for own in [{ apiGroups = [""], resources = ["nodes/status"], verbs = ["patch"] }] :
      own if var.simulated_nodes
    ],
  )

  system = concat(
    [
      # Who leads, pauses, and what the rates of budgets have let go stand on the Lease; the DNS of nodes
      # is where its Service is.
      {
        apiGroups     = ["coordination.k8s.io"]
        resources     = ["leases"]
        resourceNames = [var.lease_name]
        verbs         = var.mode == "manage" ? ["get", "patch"] : ["get"]
      },
      { apiGroups = [""], resources = ["services"], resourceNames = ["kube-dns"], verbs = ["get"] },
    ],
    # A name cannot be demanded of what is not there yet.
    [
      for own in [{ apiGroups = ["coordination.k8s.io"], resources = ["leases"], verbs = ["create"] }] :
      own if var.mode == "manage"
    ],
    # Bootstrap tokens, which are Secrets of this namespace and are only ever made.
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
    # It is there in both modes, so that to apply this again takes the rights away as well as it gives
    # them.
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
