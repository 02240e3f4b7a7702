"""The token endpoint and the metadata of our authorization server, with the MCP SDK's server-side parts.

The SDK parses token requests, authenticates clients and checks PKCE; `agentic_rag.access.authorizations` stores and
decides. Importing this module loads the protocol's library, so `agentic_rag.server.doors.authorization` does it in a
thread.
"""

from typing import Final

from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import AnyHttpUrl, AnyUrl
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.access.authorizations import SCOPES, Authorizations, GrantNotValid, IssuedTokens
from agentic_rag.access.oauth_clients import ClientRefused, OAuthClients
from agentic_rag.base.json_form import Json
from agentic_rag.store.clock import seconds_of

AUTHORIZE: Final = "/oauth/authorize"
TOKEN: Final = "/oauth/token"
REVOKE: Final = "/oauth/revoke"
REGISTER: Final = "/oauth/register"


def server_metadata(issuer: str, *, registration: bool) -> Json:
    """Return the metadata of our authorization server (RFC 8414)."""
    metadata = OAuthMetadata(
        issuer=AnyHttpUrl(issuer),
        authorization_endpoint=AnyHttpUrl(issuer + AUTHORIZE),
        token_endpoint=AnyHttpUrl(issuer + TOKEN),
        registration_endpoint=AnyHttpUrl(issuer + REGISTER) if registration else None,
        scopes_supported=list(SCOPES),
        response_types_supported=["code"],
        response_modes_supported=["query"],
        grant_types_supported=["authorization_code", "refresh_token"],
        token_endpoint_auth_methods_supported=["none"],
        revocation_endpoint=AnyHttpUrl(issuer + REVOKE),
        revocation_endpoint_auth_methods_supported=["none"],
        code_challenge_methods_supported=["S256"],
        client_id_metadata_document_supported=True,
        authorization_response_iss_parameter_supported=True,
    )
    document: Json = metadata.model_dump(mode="json", exclude_none=True)
    return document | {"issuer": issuer}  # pydantic would append a slash, and clients compare the text


def resource_metadata(resource: str, authorization_server: str) -> Json:
    """Return the metadata of the MCP door of a domain (RFC 9728)."""
    metadata = ProtectedResourceMetadata(
        resource=AnyHttpUrl(resource),
        authorization_servers=[AnyHttpUrl(authorization_server)],
        scopes_supported=list(SCOPES),
        bearer_methods_supported=["header"],
    )
    document: Json = metadata.model_dump(mode="json", exclude_none=True)
    return document | {"resource": resource, "authorization_servers": [authorization_server]}


class TokenEndpoint:
    """The token endpoint: exchanges codes and refresh tokens."""

    def __init__(self, clients: OAuthClients, authorizations: Authorizations) -> None:
        grants = _Grants(clients, authorizations)
        self._handler = TokenHandler(grants, ClientAuthenticator(grants))

    async def answer(self, request: Request) -> Response:
        """Answer a token request, whose body was checked before."""
        response: Response = await self._handler.handle(request)
        return response


class _Grants(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Our clients and grants in the form of the SDK. Authorization and registration have their own routes."""

    def __init__(self, clients: OAuthClients, authorizations: Authorizations) -> None:
        self._clients = clients
        self._authorizations = authorizations

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return a public client. A document is not fetched again: codes and tokens are bound to the client's id."""
        if "://" not in client_id:
            try:
                await self._clients.find(client_id)
            except ClientRefused:
                return None
        return OAuthClientInformationFull(client_id=client_id, token_endpoint_auth_method="none")

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        raise NotImplementedError

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        raise NotImplementedError

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        grant = await self._authorizations.find_code(client.client_id, authorization_code)
        if grant is None:
            return None
        code, record = grant
        return AuthorizationCode(
            code=code.id,
            scopes=list(record.scopes),
            expires_at=seconds_of(code.expires_at),
            client_id=record.client_id,
            code_challenge=code.challenge,
            redirect_uri=AnyUrl(record.redirect_uri),
            redirect_uri_provided_explicitly=True,
            resource=record.resource,
            subject=record.user_id,
        )

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        try:
            return _token_response(await self._authorizations.exchange_code(client.client_id, authorization_code.code))
        except GrantNotValid as exc:
            raise TokenError("invalid_grant", str(exc)) from exc

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        grant = await self._authorizations.find_refresh(client.client_id, refresh_token)
        if grant is None:
            return None
        token, record = grant
        return RefreshToken(
            token=refresh_token,
            client_id=record.client_id,
            scopes=list(token.scopes),
            expires_at=int(seconds_of(token.expires_at)),
            resource=record.resource,
            subject=record.user_id,
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        try:
            issued = await self._authorizations.exchange_refresh(client.client_id, refresh_token.token, scopes)
        except GrantNotValid as exc:
            raise TokenError("invalid_grant", str(exc)) from exc
        return _token_response(issued)

    async def load_access_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError


def _token_response(issued: IssuedTokens) -> OAuthToken:
    return OAuthToken(
        access_token=issued.access,
        refresh_token=issued.refresh,
        expires_in=int(issued.seconds),
        scope=" ".join(issued.scopes),
    )
