#!lua
-- KEYS: claim. ARGV: holder, ttl in ms. Returns whether the holder has the claim now (1 or 0); a second run renews it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
