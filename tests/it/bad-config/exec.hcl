outrigger {
  installation = "it"
}

cluster "both" {
  simulated {}
  exec { command = ["my-cloud"] }
}

cluster "empty" {
  exec { command = [] }
}

cluster "blank" {
  exec { command = [" "] }
}

cluster "none" {
  exec {}
}

cluster "managed" {
  mode = "manage"
  exec { command = ["my-cloud"] }
}

cluster "eks" {
  eks {}
  exec { command = ["my-cloud"] }
}
