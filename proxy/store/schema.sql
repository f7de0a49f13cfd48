CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    revision INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    meta BLOB,
    bytes INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, session)
);

CREATE TABLE records (
    session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
    name TEXT NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (session_id, name)
);

CREATE TABLE standing (
    session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
    name TEXT NOT NULL,
    PRIMARY KEY (session_id, name)
) WITHOUT ROWID;

CREATE TABLE blocks (
    session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
    digest TEXT NOT NULL,
    block BLOB NOT NULL,
    UNIQUE (session_id, digest)
);

CREATE TABLE journal (
    session_id INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
    number INTEGER NOT NULL,
    item BLOB NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

CREATE TABLE chain (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    session TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;

CREATE INDEX sessions_by_expiry ON sessions (expires_at);
CREATE INDEX chain_by_expiry ON chain (expires_at);
-- It covers the sum over a tenant, so that no meta is read for it.
CREATE INDEX sessions_by_tenant ON sessions (tenant, expires_at, session, bytes);

CREATE TABLE claims (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE facts (name TEXT PRIMARY KEY, fact BLOB NOT NULL, expires_at REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE rings (number INTEGER PRIMARY KEY, name TEXT NOT NULL, item BLOB NOT NULL, expires_at REAL NOT NULL);

CREATE INDEX rings_by_name ON rings (name, number);

CREATE TABLE sums (
    name TEXT NOT NULL,
    amount TEXT NOT NULL,
    value INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (name, amount)
) WITHOUT ROWID;
