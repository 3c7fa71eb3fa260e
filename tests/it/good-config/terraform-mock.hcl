# Where nobody is asked, the mock stands in.
data "terraform_output" "platform" {
  ssm_parameter = "/outrigger/prod/outputs"
  refresh       = "never"
  mock          = { clusters = { demo = { region = "us-west-2" } } }
}

cluster "fleet" {
  for_each = data.terraform_output.platform.clusters
  name     = each.key
  region   = each.value.region
  simulated {}
}
