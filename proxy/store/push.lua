#!lua
-- KEYS: ring. ARGV: ttl in ms, the most items of it, then items. Appends them, and keeps the newest.
for i = 3, #ARGV do
    redis.call('RPUSH', KEYS[1], ARGV[i])
end
redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
