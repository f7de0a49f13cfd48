#!lua
-- KEYS: lease. ARGV: holder, ttl in ms. Whether it is the holder's from now on (1 or 0), and what was left for others.
-- A second run by the holder renews it.
local found = redis.call('HMGET', KEYS[1], 'holder', 'left')
if found[2] then
    return { 0, found[2] }
end
if found[1] and found[1] ~= ARGV[1] then
    return { 0, '' }
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, '' }
