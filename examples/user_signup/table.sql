CREATE TABLE IF NOT EXISTS user_sign_up (
    user_id TEXT PRIMARY KEY,
    form    JSON NOT NULL,
    status  TEXT NOT NULL,
    source  TEXT
);
