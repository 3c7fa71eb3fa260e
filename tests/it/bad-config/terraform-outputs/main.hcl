# Outputs that cannot be had, each for another reason.
data "terraform_output" "nowhere" {}

data "terraform_output" "both" {
  file  = "outputs.json"
  state = "old.tfstate"
}

data "terraform_output" "missing" { file = "missing.json" }

data "terraform_output" "garbled" { file = "garbled.json" }

data "terraform_output" "plain" { file = "plain.json" }

data "terraform_output" "old" { state = "old.tfstate" }

data "terraform_output" "empty" { state = "empty.tfstate" }

locals { subnets = data.terraform_output.plain.subnets }
