# What is sensitive is not there.
data "terraform_output" "platform" { file = "outputs.json" }
cluster "one" {
  region = data.terraform_output.platform.password
  kubeconfig { path = data.terraform_output.other.path }
}
