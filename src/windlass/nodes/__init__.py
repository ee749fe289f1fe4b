"""Nodes that share no folder with the server: they fetch their plans over HTTP and report there. Engines know them by
the `NodeBook` of their contract, the API by `NodeService`; the two meet in the database.
"""
