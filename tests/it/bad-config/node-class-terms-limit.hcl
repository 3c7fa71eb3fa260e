cluster "demo" {
  simulated {}
}

node_class "general" {
  subnet { id = "subnet-0" }
  subnet { id = "subnet-1" }
  subnet { id = "subnet-2" }
  subnet { id = "subnet-3" }
  subnet { id = "subnet-4" }
  subnet { id = "subnet-5" }
  subnet { id = "subnet-6" }
  subnet { id = "subnet-7" }
  subnet { id = "subnet-8" }
  subnet { id = "subnet-9" }
  subnet { id = "subnet-10" }
  subnet { id = "subnet-11" }
  subnet { id = "subnet-12" }
  subnet { id = "subnet-13" }
  subnet { id = "subnet-14" }
  subnet { id = "subnet-15" }
  subnet { id = "subnet-16" }
  subnet { id = "subnet-17" }
  subnet { id = "subnet-18" }
  subnet { id = "subnet-19" }
  subnet { id = "subnet-20" }
  subnet { id = "subnet-21" }
  subnet { id = "subnet-22" }
  subnet { id = "subnet-23" }
  subnet { id = "subnet-24" }
  subnet { id = "subnet-25" }
  subnet { id = "subnet-26" }
  subnet { id = "subnet-27" }
  subnet { id = "subnet-28" }
  subnet { id = "subnet-29" }
  subnet { id = "subnet-30" }
}

pool "general" {
  node_class = node_class.general
}
