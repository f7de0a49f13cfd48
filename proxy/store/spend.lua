#!lua
-- KEYS: budget, a key that lives for as long as is missing from the budget. ARGV: an amount in ms, the whole budget in
-- ms (below 0: unbounded), the most that may be missing in ms. Takes the amount, below 0 gives it back, and returns 0. If nothing is left, takes nothing and
-- returns the ms until something is.
local missing = math.min(math.max(redis.call('PTTL', KEYS[1]), 0), tonumber(ARGV[3]))
local most = tonumber(ARGV[2])
if most >= 0 and missing >= most then
    return missing - most + 1
end
missing = math.min(missing + tonumber(ARGV[1]), tonumber(ARGV[3]))
if missing > 0 then
    redis.call('SET', KEYS[1], '', 'PX', string.format('%d', missing))
else
    redis.call('UNLINK', KEYS[1])
end
return 0
