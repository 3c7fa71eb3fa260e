outrigger { installation = "tests" }

cluster "one" {
  region       = "eu-central-1"
  isolated_vpc = true
  eks {}
}

cluster "two" {
  region = "eu-central-1"
  eks {}
}

cluster "simulated" {
  region = "eu-central-1"
  simulated {}
}

cluster "elsewhere" {
  region = "eu-west-1"
  eks {}
}
