"""A stand-in kubelet: registers a node, keeps its lease, and runs the command of every pod bound to it as a process of
this machine, with the pod's environment, status and deletion as a kubelet has them. No images, no isolation.
"""
