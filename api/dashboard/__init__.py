"""The files of the dashboard: one page, its modules and styles, and uPlot (see vendor/NOTICE).

``index.html`` loads ``main.js``, which draws what ``service.js`` fetches. Nothing of it is Python.
"""
