"""Which method, rates and local work for this federation and budget: measured, forecast, and tried out if asked."""
