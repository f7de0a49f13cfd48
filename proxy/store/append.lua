#!lua
-- KEYS: meta, journal. ARGV: an item, the most items. Appends the item if there is a session (1), else nothing (0).
if redis.call('HEXISTS', KEYS[1], 'body') == 0 then
    return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('LTRIM', KEYS[2], -ARGV[2], -1)
redis.call('HINCRBY', KEYS[1], 'journal', 1)
redis.call('PEXPIRE', KEYS[2], math.max(redis.call('PTTL', KEYS[1]), 1))
return 1
