"""Scripted stand-ins for the model, for tests and scripts only.

`ScriptedModel` stands in for a `Model` in process, `fake_api.FakeMessagesAPI` for the service over HTTP; both
say what `steps` describe and refuse what `problems` lists. Imported from their modules: a test of the turn
need not load a web server.
"""
