"""``weir demo``: the main job, on a stream of posts that the demo makes up itself.

People in some places post about topics. Most posts about a topic come from one place. This changes with time:
topics move to other places, old topics end, new ones appear, and now and then one explodes. The job counts posts per
place, then finds the topics that trend; both operators keep state per key, on every server. A post goes to the server
of its place, then to the server of its topic, and is sent over only if the two are not the same.
"""
