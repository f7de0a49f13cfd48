#!lua
-- KEYS: lease. ARGV: holder, its handover or '', ttl of that in ms. Only the holder of the lease can end it, so a
-- second run changes nothing.
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then
    return 0
end
redis.call('UNLINK', KEYS[1])
if #ARGV[2] > 0 then
    redis.call('HSET', KEYS[1], 'left', ARGV[2])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
