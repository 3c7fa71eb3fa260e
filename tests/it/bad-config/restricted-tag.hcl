cluster "demo" {
  simulated {}
}

node_class "general" {
  tags = {
    ""                               = "a"
    "aws:name"                       = "a"
    "eks:eks-cluster-name"           = "a"
    "kubernetes.io/cluster/demo"     = "owned"
    "karpenter.sh/nodepool"          = "a"
    "karpenter.sh/nodeclaim"         = "a"
    "karpenter.k8s.aws/ec2nodeclass" = "a"
    "outrigger.dev/claim"            = "a"
    "outrigger.dev/anything"         = "a"
    "example.com/long"               = format("%0300d", 1)
    "example.com/list"               = []
  }
}

pool "general" {
  node_class = node_class.general
}
