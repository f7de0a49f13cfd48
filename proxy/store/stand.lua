#!lua
-- KEYS: meta, records, standing. ARGV: name. The mark expires with the session; without a session it is not made.
local ttl = math.max(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]))
if ttl > 0 then
    redis.call('SADD', KEYS[3], ARGV[1])
    redis.call('PEXPIRE', KEYS[3], ttl)
end
return 1
