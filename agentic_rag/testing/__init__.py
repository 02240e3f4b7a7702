"""Scripted stand-ins for the model, for tests and scripts only.

`ScriptedModel` replaces a `Model` in process, `fake_api.FakeMessagesAPI` the service over HTTP. Both answer with the
steps that `steps` describes and refuse the requests that `problems` describes. Import them from their modules: a test
of the turn need not load a web server.
"""
