CREATE TABLE kept (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID;
INSERT INTO kept VALUES ('client', 'c1', CAST('{"client_id":"c1","client_name":"Editor","redirect_uris":["http://127.0.0.1/callback"],"grant_types":["authorization_code","refresh_token"],"method":"none","secret_mark":null,"jwks":null,"jwks_uri":null,"scopes":[],"by_document":false}' AS BLOB), 4000000000.0);
INSERT INTO kept VALUES ('family', 'f1', CAST('{"grant":{"family":"f1","client_id":"c1","subject":"ada","resource":"https://mcp.example.com/mcp","scopes":["files"],"claims":{},"jkt":null,"upstream":null},"since":1760000000.5,"code":"h1","root":"h2","current":"h3","renewable":4000000000.0}' AS BLOB), 4000000000.0);
