"""What engines share whose nodes reach the server over HTTP: plans without paths, and reports made observations."""
