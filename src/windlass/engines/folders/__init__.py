"""What engines share whose node folders lie where the server can read them: on its disk, or on a shared one."""
