#!lua flags=no-writes
-- KEYS: meta, journal. Returns the number of the newest item, and the items, oldest first.
return { redis.call('HGET', KEYS[1], 'journal') or 0, redis.call('LRANGE', KEYS[2], 0, -1) }
