for i in $(seq 1 32); do sleep 5; timeout 3 /tmp/q/bin10/sweetspot ctl --socket /tmp/q/d1/d.sock decisions everything --json 2>/dev/null | /usr/bin/python3 -c "
import json,sys
d=json.load(sys.stdin)['decisions'][-1]
print(round(d['rate_hz'],1),d['bound_by'],d['reason'],round(d['optimum_rate_hz'],1))"; done
