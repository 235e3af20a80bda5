"""The rules of lawful event sequences, as a feeder without Rx; these are not operators."""
