cluster "demo" {
  simulated {}
}

node_class "general" {
  capacity_reservation {}
  capacity_reservation { id = "1" }
  capacity_reservation { owner = "123456789012" }
  capacity_reservation {
    owner = "1"
    tags  = { a = "b" }
  }
  capacity_reservation { instance_match_criteria = "closed" }
  capacity_reservation {
    id                      = "cr-1"
    owner                   = "123456789012"
    instance_match_criteria = "open"
    tags                    = { a = "b" }
  }
  placement_group {
    id   = "pg-1"
    name = "close"
  }
}

pool "general" {
  node_class = node_class.general
}
