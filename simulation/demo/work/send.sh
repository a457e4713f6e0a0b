#!/bin/sh
# Sends the report: a line in outbox.log stands for a message that cannot be taken back.
echo $$ > send.pid
echo "sent: $(tail -n 1 report.txt)" >> outbox.log
# A server that is slow to answer, in the second half of the demo.
while [ -e server-is-slow ]; do sleep 0.1; done
echo "the server has it"
