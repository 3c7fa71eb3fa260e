cluster "prod" {
  region = "eu-central-1"
  eks {}
}

cluster "lab" {
  region = "eu-central-1"
  kubeconfig { path = "/etc/lab" }
}

node_class "broken" {
  clusters  = ["prod"]
  ami       { alias = "bottlerocket@latest" }
  user_data = "settings ="
}

node_class "long" {
  clusters  = ["prod"]
  ami       { alias = "windows2022@latest" }
  user_data = join("", [for number in range(1000) : "Get-Item number-${number}.txt\n"])
}

node_class "unnamed" {
  clusters   = ["lab"]
  ami_family = "custom"
  ami        { id = "ami-0123456789abcdef0" }
  bootstrap "custom" {
    template = "join {{ tokn }}"
  }
}

node_class "rooted" {
  clusters   = ["lab"]
  ami_family = "custom"
  ami        { id = "ami-0123456789abcdef0" }
  bootstrap "kubeadm" {}
  metadata_options { http_endpoint = "disabled" }
}

pool "broken" {
  clusters   = ["prod"]
  node_class = node_class.broken
}
pool "long" {
  clusters   = ["prod"]
  node_class = node_class.long
}
pool "unnamed" {
  clusters   = ["lab"]
  node_class = node_class.unnamed
}
pool "rooted" {
  clusters   = ["lab"]
  node_class = node_class.rooted
}
