team  = "a"
teems = 3
