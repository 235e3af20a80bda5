"""What a lawful stream keeps, as a feeder that knows no Rx. Not operators."""
