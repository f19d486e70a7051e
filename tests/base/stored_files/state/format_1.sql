PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE state (name TEXT PRIMARY KEY, data BLOB NOT NULL, expires_at REAL) WITHOUT ROWID;
INSERT INTO "state" VALUES('counter user ada forgotten',X'0132',NULL);
INSERT INTO "state" VALUES('2:counter:user:ada:count',X'0133',NULL);
INSERT INTO "state" VALUES('2:counter:user:ada:old',X'0131',1.79495650679587817185e+09);
COMMIT;
