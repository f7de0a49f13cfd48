#!lua
-- KEYS: newest. ARGV: an entry, its ttl in ms. Notes that the entry was saved now, and keeps the last 1,000.
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%d', time[1] * 1000000 + time[2]), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1001)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
