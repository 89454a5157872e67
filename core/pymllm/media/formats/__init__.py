"""What a file is and how large it will be, read from its structure before any decoder sees it.

A decoder walks a file's blocks in Python and allocates what headers say: so blocks are counted, sizes known
and cut files found here first. :func:`~pymllm.media.formats.sniff.sniff` names the format by the content,
:func:`~pymllm.media.formats.header.read_header` reads the rest.
"""
