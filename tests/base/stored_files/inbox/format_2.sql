CREATE TABLE asked (
    ticket TEXT PRIMARY KEY, request BLOB NOT NULL, work BLOB, answer BLOB, asked REAL NOT NULL, until REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO asked VALUES ('tkt_a', CAST('{"kind":"tool.call","server":"hr","tool":"approve","arguments":{"days":3},"wait":false}' AS BLOB), CAST('{"server":"hr","identity":"cmd:abc","tool":"approve","arguments":{"days":3},"fingerprint":"f1","pending":null,"questions":{},"answers":{}}' AS BLOB), NULL, 1760000000.5, 4000000000.0);
INSERT INTO asked VALUES ('tkt_b', CAST('{"kind":"elicitation.form","server":"hr","details":{"message":"Sure?"}}' AS BLOB), NULL, NULL, 1760000001.5, 4000000000.0);
INSERT INTO asked VALUES ('tkt_c', CAST('{"kind":"tool.call","server":"hr","tool":"approve"}' AS BLOB), NULL, CAST('{"kind":"Allow","value":{"scope":"always","expires_in":60.0,"exact_arguments":true}}' AS BLOB), 1760000002.5, 4000000000.0);
INSERT INTO asked VALUES ('tkt_d', CAST('{"kind":"tool.call","server":"hr","tool":"approve"}' AS BLOB), NULL, CAST('{"kind":"Deny","value":{"reason":"no","cancelled":true}}' AS BLOB), 1760000003.5, 4000000000.0);
INSERT INTO asked VALUES ('tkt_e', CAST('{"kind":"tool.call","server":"hr","tool":"approve"}' AS BLOB), NULL, CAST('{"kind":"Edit","value":{"value":{"exact":1}}}' AS BLOB), 1760000004.5, 4000000000.0);
PRAGMA user_version = 2;
