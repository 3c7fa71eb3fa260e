cluster "socks" {
  simulated {}
  proxy {
    url      = "socks5://bastion:1080"
    username = "outrigger"
  }
}

cluster "half" {
  simulated {}
  proxy {
    url      = "http://bastion:3128"
    password = "secret"
  }
}

cluster "inside" {
  simulated {}
  proxy {
    url = "http://me:secret@bastion:3128"
  }
}

cluster "none" {
  simulated {}
  proxy {
  }
}
