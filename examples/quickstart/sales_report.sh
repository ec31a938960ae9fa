#!/bin/sh
# Reads a payload such as {"title":"Week 48","amounts":[120,80,45]} from stdin
# and prints a report as JSON. What it prints on stdout is the job's result.
set -eu
tr -d '\n' | awk '
  {
    title = $0; sub(/.*"title"[ ]*:[ ]*"/, "", title); sub(/".*/, "", title)
    list = $0;  sub(/.*"amounts"[ ]*:[ ]*\[/, "", list); sub(/\].*/, "", list)
    n = split(list, amounts, ",")
    for (i = 1; i <= n; i++) sum += amounts[i]
    printf "{\"title\":\"%s\",\"sales\":%d,\"total\":%d}\n", title, n, sum
  }'
